package nfs

// SameVersion reports whether a and b are attributes of one file with the same contents, as far
// as attributes tell: file id, size, time of modification and time of the last change, which
// no caller can set. RFC 1813 section 2.5. The file system's id is left out: with some servers it
// is another one after each start.
//
// A change that comes within the granularity of the server's clock of the one before may not be
// seen; a change of mode, owner or link count is.
func (a *Attr) SameVersion(b *Attr) bool {
	return a.FileID == b.FileID && a.Size == b.Size && a.MTime == b.MTime && a.CTime == b.CTime
}
