package dirfs

// A Store keeps key-value pairs on stable storage, for handles that must outlive the process. One Store can serve many
// FS. Its methods must be safe for concurrent use.
type Store interface {
	// Get returns the value of a key, or nil. key is valid until Get returns; the
	// value belongs to the caller.
	Get(key []byte) (value []byte, err error)

	// Put stores all pairs atomically. If a key occurs several times, the last one counts. A nil value removes the
	// pair. The pairs are valid until Put returns.
	Put(pairs []Pair) error
}

// A Pair is a Key and its Value. Keys have up to 42 bytes, values up to 512.
type Pair struct {
	Key, Value []byte
}
