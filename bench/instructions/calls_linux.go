package main

import "syscall"

// besides lists system calls that do not count: those of the emulator, which lacks the kernel's vDSO for the time, and
// those of the runtime's watchdog, which depend on how long calls take. Immutable.
var besides = map[int]bool{
	syscall.SYS_CLOCK_GETTIME: true, syscall.SYS_NANOSLEEP: true,
	syscall.SYS_GETPID: true, syscall.SYS_TGKILL: true, syscall.SYS_RT_SIGRETURN: true,
}

// syscallNames maps the system calls that occur to their names. Immutable.
var syscallNames = map[int]string{
	syscall.SYS_READ: "read", syscall.SYS_WRITE: "write", syscall.SYS_READV: "readv", syscall.SYS_WRITEV: "writev",
	syscall.SYS_RECVMSG: "recvmsg", syscall.SYS_SENDMSG: "sendmsg", syscall.SYS_RECVFROM: "recvfrom", syscall.SYS_SENDTO: "sendto",
	syscall.SYS_EPOLL_PWAIT: "epoll_pwait", syscall.SYS_EPOLL_CTL: "epoll_ctl", syscall.SYS_FUTEX: "futex",
	syscall.SYS_MMAP: "mmap", syscall.SYS_MUNMAP: "munmap", syscall.SYS_MADVISE: "madvise",
}
