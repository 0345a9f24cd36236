"""dure: federated learning."""
