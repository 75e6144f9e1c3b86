package transport

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/rpcrdma/rpcrdma/internal/rate"
)

// An event is an event that is logged to Config.Logger.
type event uint8

const (
	eventFailed event = iota // a handler returned an error
	eventPanic               // the program's code panicked
	eventUnsent              // a reply could not be sent
	eventEnded               // a connection failed
	numEvents
)

// Limits on the records of each event: a peer, or a handler that always fails, could flood the log.
const (
	recordBurst     = 20
	recordsInSecond = 10
)

// A journal writes the log records of one end.
type journal struct {
	log   *slog.Logger // nil: slog.Default()
	gates [numEvents]*rate.Gate
}

func newJournal(log *slog.Logger) *journal {
	j := &journal{log: log}
	r, _ := rate.New(recordsInSecond, recordBurst) // constants in order
	for i := range j.gates {
		j.gates[i] = rate.NewGate(r)
	}
	return j
}

// write writes a record of e, unless there have been too many.
func (j *journal) write(e event, level slog.Level, msg string, attrs ...slog.Attr) {
	log := j.log
	if log == nil {
		log = slog.Default()
	}
	if !log.Enabled(context.Background(), level) {
		return
	}
	omitted, ok := j.gates[e].Pass()
	if !ok {
		return
	}
	if e == eventPanic {
		attrs = append(attrs, slog.String("stack", string(debug.Stack())))
	}
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	log.LogAttrs(context.Background(), level, msg, attrs...)
}
