"""Activities, one class per port: translate, call, classify, heartbeat."""
