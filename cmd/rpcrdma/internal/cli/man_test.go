package cli

import (
	"testing"
)

// Text stays text, whatever it begins with.
func TestManualText(t *testing.T) {
	for text, want := range map[string]string{
		`.SH "x"`:             `\&.SH \(dqx\(dq`,
		`'a' - \- ~ ^ ` + "`": `\(aqa\(aq \- \e\- \(ti \(ha ` + "\\`",
	} {
		if got := roff(text); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
	var p page
	p.text("a\nb\n  c\n    d\ne\n\nf")
	if got, want := p.String(), "a\nb\n.RS 2\n.nf\nc\n  d\n.fi\n.RE\ne\n.PP\nf\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
