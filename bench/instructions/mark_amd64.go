package main

// mark is a border of what is measured: a nop that the plugin knows, see plugin/count.c.
func mark()
