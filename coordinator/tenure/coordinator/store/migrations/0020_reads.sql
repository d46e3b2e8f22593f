-- What the reads of operators need beside the indexes of the state itself.

create index tasks_held on tasks (tenant, task_id) where state = 'held';
