// Package dirfs exports a directory of the host through package nfsd. It requires Linux and /proc. Older kernels and
// some containers lack openat2(2) and faccessat2(2). Without them ACLs are ignored, and another part of the same file
// system that is mounted below the directory is accessible.
//
// # Bounds
//
// Nothing outside of the directory can be reached, whatever names, handles and cookies a client sends, and whatever
// happens to the directory meanwhile. Names are looked up one at a time with openat2(2), symbolic links are never
// followed, and special files are never opened, only named. File systems mounted below the directory are not part of
// the export either: such a mount point is listed without handle and attributes, and LOOKUP of it fails with
// NFS3ERR_ACCES. (Linux's own server, without crossmnt, shows the covered directory, which is usually empty.) To serve
// such a file system, export it too.
//
// # Handles
//
// A handle contains the kernel's file handle of the inode (name_to_handle_at(2)), with its generation: it stays valid
// when the file is renamed, and never leads to another file. If the file system has no such handles, the inode number
// and time of birth replace it. On overlayfs, the root file system of most containers, handles require Linux 6.5:
// before that, a file of a lower layer gets another time of birth, and thus another handle, on the first write. A file
// system without times of birth, such as 9p, has only inode numbers: a handle may then lead to a new file that reuses
// the number of a removed one. Open logs a warning in both cases.
//
// In a process that may use open_by_handle_at(2), such as root in the initial user namespace, handles survive restarts
// without further state. As with Linux's own server, a client that has the handle of a file keeps access to it when the
// file is moved out of the directory.
//
// In other processes the FS remembers where it has seen each file: its directory and name. It finds a file that is no
// longer there by searching the directory where it was, and then all directories. One search runs at a time, in the
// background, and pauses for half of its time. One call of each host waits for the search, for up to 8 hosts; other
// calls return NFS3ERR_JUKEBOX, and their clients retry. The memory for places is bounded, and each client has a share
// of it. Store keeps the places that do not fit, and all places for the next run.
//
// # Identity
//
// As root, operations run with the caller's user and groups and without capabilities, on a dedicated thread: the kernel
// checks permissions, ACLs, quotas and sticky directories. The exception is the permission to read or write an open
// file: the FS caches the kernel's answer for a second, unless the file's mode or owner changes, and the owner always
// has permission. As any other user, the FS performs all operations as that user, for any caller, and new files belong
// to that user.
//
// New files have the mode that the client asks for: the umask of the process is undone, except in directories with a
// default ACL. That costs a system call, which is avoided if the process has umask 0.
//
// # Stability
//
// Changes to directories and attributes are on disk when a method returns, as RFC 1813 section 4.7 requires and Linux's
// own server does by default. Data is on disk when WriteAt or Commit says so. With Config.Async no method waits for the
// disk.
//
// If written data could not be stored, clients write it again: the first call that learns of the failure changes the
// write verifier for all later replies.
//
// Stability requires fsync(2) of a new file and of its directory, or of both directories after a rename. On ext3, ext4
// and XFS the directory of a new file is not flushed, because their journals store such a change as one entry. An
// object that cannot be opened, such as a link or a special file, is stored with its directory when it is created.
// Later changes of its attributes are not waited for: that would require syncfs(2), which writes all changes of the
// file system.
//
// # Descriptors
//
// Up to Config.MaxOpen descriptors stay open, for Config.Idle after their last use. A file that is removed through the
// FS is closed at once.
package dirfs
