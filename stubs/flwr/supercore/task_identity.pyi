class TaskIdentity:
    task_id: int
    run_id: int
    node_id: int
