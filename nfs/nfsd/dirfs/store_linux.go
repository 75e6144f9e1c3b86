package dirfs

// A Store keeps pairs of keys and values on stable storage, for handles that have to live longer
// than the process. One Store can serve many FS. Its methods are called by many goroutines at
// once.
type Store interface {
	// Get returns the value of a key, or nil. key is valid until Get returns; the
	// value belongs to the caller.
	Get(key []byte) (value []byte, err error)

	// Put stores pairs, all or none of them; of several with one key the last counts. A nil value
	// removes the pair. They are valid until Put returns.
	Put(pairs []Pair) error
}

// A Pair is a Key and its Value. Keys have at most 42 bytes, values at most 512.
type Pair struct {
	Key, Value []byte
}
