// Package examples tests the services below this directory and docs/getting-started.md. It builds their commands and
// runs each client against each server.
package examples
