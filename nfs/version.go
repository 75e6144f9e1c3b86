package nfs

// SameVersion reports whether a and b are attributes of the same file with the same contents, as far as attributes can
// show: file id, size, time of modification and time of the last change, which no caller can set. RFC 1813 section 2.5.
// The file system's id is ignored, because some servers change it on each start.
//
// A change may go unnoticed if it follows the previous one within the granularity of the server's clock. A change of
// mode, owner or link count is noticed.
func (a *Attr) SameVersion(b *Attr) bool {
	return a.FileID == b.FileID && a.Size == b.Size && a.MTime == b.MTime && a.CTime == b.CTime
}
