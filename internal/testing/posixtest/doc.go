// Package posixtest compares what programs see of two file systems. A table of checks does the same in a directory of
// each: one is local and the oracle, the other may be mounted from a server. Checks compare the results of system
// calls, the trees that they leave, and which times they change.
//
// A check passes if both sides behave the same, in whatever way: the package does not know what is right. It requires
// Linux. As root, checks run as several users, otherwise as one.
package posixtest
