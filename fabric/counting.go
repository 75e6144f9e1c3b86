package fabric

// A Counter is a counter of an adapter, for people and monitors.
type Counter struct {
	// Name is in lower case with underscores, such as "write_calls". It means the same for
	// every connection of a provider.
	Name string
	// Value never decreases during the life of the connection.
	Value uint64
	// Help describes the counter in a sentence.
	Help string `json:"-"`
}

// Counting is implemented by Conns that count their operations.
type Counting interface {
	// Counters returns the counters, always in the same order. It may acquire the locks of the data path.
	Counters() []Counter
}
