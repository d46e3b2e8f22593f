-- Invariants of stored outcomes; see verify_tasks.sql.

-- name: page
select (array_agg(p.command_id order by p.command_id desc))[1] as last, count(*) as rows
from (
    select command_id from tenure.commands where command_id > $1 order by command_id limit $2
) p

-- name: commands-are-consistent
-- The stored reply tells the stored outcome, of a task that exists, or was removed since.
select 'command ' || c.command_id as subject,
    format('outcome %s, reply %s', c.outcome, c.reply) as detail
from tenure.commands c
where c.command_id > $1 and c.command_id <= $2
  and ((c.reply ->> 'outcome') is distinct from c.outcome
      or (c.reply ->> 'task_id' is not null and not exists (
          select from tenure.tasks t
          where t.task_id = (c.reply ->> 'task_id')::uuid and t.tenant = c.tenant)
          and (select removed_to from tenure.retention where kind = 'tasks') = '-infinity'))
