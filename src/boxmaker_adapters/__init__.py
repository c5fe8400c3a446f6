"""The drivers behind the core's ports. Importing this loads none of them; import the module you need."""
