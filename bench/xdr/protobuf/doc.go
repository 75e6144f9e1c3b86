// Package protobuf has what google.golang.org/protobuf and vtprotobuf makes of the messages, while the tests run.
package protobuf
