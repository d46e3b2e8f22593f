"""The private local stack: PostgreSQL, RabbitMQ and the processes of Tenure."""
