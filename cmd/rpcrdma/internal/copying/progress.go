package copying

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// meter counts the bytes of a transfer, and shows a progress bar on a terminal.
type meter struct {
	mu    sync.Mutex
	files int
	bytes int64
	total int64 // as far as known

	spared int64                    // bytes that need not be transferred
	bar    *progressbar.ProgressBar // nil: no terminal
}

// newMeter returns a meter for total bytes. It draws the bar on w if that is a terminal.
func newMeter(w io.Writer, total int64) *meter {
	m := &meter{total: total}
	if f, ok := w.(*os.File); ok && total > 0 && term.IsTerminal(int(f.Fd())) {
		m.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(w),
			progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true),
			progressbar.OptionSetWidth(30),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return m
}

// more adds n bytes to the total. The bar is not full before the total is final.
func (m *meter) more(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += n
	if m.bar != nil {
		m.bar.ChangeMax64(m.total + 1)
	}
}

// file returns a function to be called with the number of bytes of one file transferred so far. The number may fall
// when the file is copied again.
func (m *meter) file() func(int64) {
	var last int64
	return func(n int64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.bytes += n - last
		if m.bar != nil {
			_ = m.bar.Set64(min(m.bytes+m.spared, m.total)) // the terminal may go away
		}
		last = n
	}
}

// spare counts bytes copied earlier.
func (m *meter) spare(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spared += n
}

// finished counts a complete file.
func (m *meter) finished() {
	m.mu.Lock()
	m.files++
	m.mu.Unlock()
}

// close removes the bar.
func (m *meter) close() {
	if m.bar != nil {
		_ = m.bar.Finish()
	}
}
