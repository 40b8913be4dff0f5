"""How replicas are run. Today as processes; containers implement the same small interface."""
