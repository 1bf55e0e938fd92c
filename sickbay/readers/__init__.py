"""Pure: tool output to findings and measurements, one module per tool."""
