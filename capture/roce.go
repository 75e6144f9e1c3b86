package capture

func (f *framer) roce(e *event)                         {}
func (f *framer) beginRoCE(s *stream)                   {}
func (f *framer) setupRoCE(s *stream, at int64)         {}
func (f *framer) endRoCE(s *stream, at int64, out bool) {}
