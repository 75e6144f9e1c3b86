package fabric

// A Counter is a figure of an adapter, for people and monitors.
type Counter struct {
	// Name is in lower case with underscores, such as "write_calls". It means the same for
	// every connection of a provider.
	Name string
	// Value only grows during the life of the connection.
	Value uint64
	// Help describes it in a sentence.
	Help string `json:"-"`
}

// Counting is implemented by Conns that count what they do.
type Counting interface {
	// Counters returns the figures, in an order that does not change. It may take the locks of
	// the data path.
	Counters() []Counter
}
