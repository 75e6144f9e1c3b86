// Package dirfs exports a directory of the host through package nfsd. It needs Linux, and /proc.
// Without openat2(2) and faccessat2(2), which older kernels and some containers lack, ACLs are
// ignored, and another part of the same file system that is mounted below the directory is entered.
//
// # Bounds
//
// Nothing outside of the directory can be reached, whatever names, handles and cookies a client sends
// and whatever happens to the directory meanwhile: names are looked up one at a time with openat2(2),
// symbolic links are never followed, and special files are never opened, only named. File systems
// mounted below the directory are not part of the export either: such a mount point is listed without
// handle and attributes, and LOOKUP of it is NFS3ERR_ACCES. Linux's own server, without crossmnt,
// shows the covered directory, which is usually empty. To serve such a file system, export it, too.
//
// # Handles
//
// A handle contains the kernel's file handle of the inode (name_to_handle_at(2)), with its
// generation: it stays valid when the file gets other names, and never leads to another file. Where
// the file system has no such handles, inode number and time of birth replace it. On overlayfs, the
// root file system of most containers, handles need Linux 6.5: before that, a file of a lower layer
// has another time of birth, and so another handle, after the first write. A file system without
// times of birth either, such as 9p, has only inode numbers: a handle can then lead to a new file
// that has the number of a removed one. Open logs a warning in both cases.
//
// A process that may use open_by_handle_at(2), which root in the initial user namespace may,
// needs nothing else: handles survive restarts. As with Linux's own server, a client that has
// the handle of a file keeps it when the file is moved out of the directory.
//
// Otherwise the FS remembers where it has seen each file: directory and name. It finds a file that is
// no longer there by searching the directory where it was, and then all of them. One search runs at a
// time, in the background, and pauses for half of its time. One call of each host waits for it, for
// up to 8 hosts; other calls return NFS3ERR_JUKEBOX, and their clients try again. The memory for
// places is bounded, and each client has a share of it. Store keeps the places that do not fit, and
// all places for the next run.
//
// # Identity
//
// As root, operations run with the caller's user, groups and no capabilities, on a thread that does
// nothing else: the kernel checks permissions, ACLs, quotas and sticky directories. The exception is
// the permission to read or write an open file: the FS caches the kernel's answer for a second,
// unless the file's mode or owner changes, and the owner always has the permission. Run as any other
// user, the FS does all operations as that user, whoever calls, and new files belong to that user.
//
// New files have the mode that the client asks for: the umask of the process is undone, except in
// directories with a default ACL. That costs a system call, which a process with umask 0 saves.
//
// # Stability
//
// Changes of directories and attributes are on the disk when a method returns, as RFC 1813 section
// 4.7 wants and Linux's own server does by default, and data when WriteAt or Commit says so. With
// Config.Async no method waits for the disk.
//
// When written data could not be stored, clients write it again: the first call that learns of the
// failure changes the write verifier, for all later replies.
//
// Stability needs fsync(2) of a new file and of its directory, or of both directories after a rename.
// On ext3, ext4 and XFS a new file's directory is left out, because their journals write such a
// change as one entry. An object that cannot be opened, such as a link or a special file, is stored
// with its directory when it is made. Later changes of its attributes are not waited for: that would
// need syncfs(2), which writes all changes of the file system.
//
// # Descriptors
//
// Up to Config.MaxOpen descriptors stay open, for Config.Idle after the last use. A file that
// is removed through the FS is closed at once.
package dirfs
