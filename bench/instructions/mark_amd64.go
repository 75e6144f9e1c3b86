package main

// mark is a border of the measured code: a nop that the plugin knows, see plugin/count.c.
func mark()
