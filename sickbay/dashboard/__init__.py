"""The web application: what is pushed to us, and the page of health metrics."""
