package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewMan returns the command that writes manual pages for packages.
func NewMan() *cobra.Command {
	var m manual
	cmd := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write manual pages to a directory",
		Hidden: true, // for scripts/package
		Args:   WantArgs("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := m.write(cmd.Root(), args[0]); err != nil {
				return fmt.Errorf("man: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&m.release, "release", "rpcrdma", "the pages are of `RELEASE`")
	cmd.Flags().StringVar(&m.date, "date", "", "the pages are of `DATE`")
	return cmd
}

// manual writes manual pages in the man(7) format: one for the program, one for each subcommand, and one for each help
// topic.
type manual struct{ release, date string }

// Sections of the manual.
const (
	sectionCommands = 1
	sectionTopics   = 7
)

// write writes all pages to an existing directory.
func (m *manual) write(root *cobra.Command, dir string) error {
	for _, cmd := range append([]*cobra.Command{root}, listed(root)...) {
		name := fmt.Sprintf("%s.%d", pageName(cmd), pageSection(cmd))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(m.page(cmd)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// listed returns the subcommands of cmd that have a page, topics last.
func listed(cmd *cobra.Command) (list []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.Name() != "help" && (sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand()) {
			list = append(list, sub)
		}
	}
	slices.SortStableFunc(list, func(a, b *cobra.Command) int { return cmp.Compare(pageSection(a), pageSection(b)) })
	return list
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func pageSection(cmd *cobra.Command) int {
	if cmd.IsAdditionalHelpTopicCommand() {
		return sectionTopics
	}
	return sectionCommands
}

// page returns the page of a command.
func (m *manual) page(cmd *cobra.Command) string {
	var p page
	name := pageName(cmd)
	p.line(`.TH %s %d "%s" "%s"`, strings.ToUpper(roff(name)), pageSection(cmd), roff(m.date), roff(m.release))
	p.line(".SH NAME")
	p.line(`%s \- %s`, roff(name), roff(cmd.Short))
	if cmd.Runnable() {
		p.line(".SH SYNOPSIS")
		p.line(`.B %s`, roff(cmd.CommandPath()))
		p.line(`%s`, roff(synopsis(cmd)))
	}
	if text := strings.TrimSpace(cmd.Long); text != "" {
		p.line(".SH DESCRIPTION")
		p.text(text)
	}
	if subs := listed(cmd); len(subs) > 0 {
		p.line(".SH COMMANDS")
		for _, sub := range subs {
			p.line(".TP")
			p.line(`.B %s`, roff(sub.Name()))
			p.line(`%s`, roff(sub.Short))
		}
	}
	cmd.InitDefaultHelpFlag()
	if flags := cmd.NonInheritedFlags(); flags.HasAvailableFlags() && cmd.Runnable() {
		p.line(".SH OPTIONS")
		flags.VisitAll(p.option)
	}
	if cmd.Runnable() {
		p.line(".SH EXIT STATUS")
		p.text("0 for success, 1 if the work failed, 2 if the command line made no sense.")
	}
	if cmd.Example != "" {
		p.line(".SH EXAMPLES")
		p.verbatim(cmd.Example)
	}
	p.line(".SH SEE ALSO")
	var others []string
	for _, other := range append([]*cobra.Command{cmd.Root()}, listed(cmd.Root())...) {
		if other != cmd {
			others = append(others, fmt.Sprintf(`.BR %s (%d)`, roff(pageName(other)), pageSection(other)))
		}
	}
	p.line("%s", strings.Join(others, " ,\n"))
	return p.String()
}

// synopsis returns the arguments after the name of a command.
func synopsis(cmd *cobra.Command) string {
	_, args, _ := strings.Cut(cmd.UseLine(), cmd.CommandPath())
	if cmd.HasAvailableSubCommands() {
		args += " [command]"
	}
	return strings.TrimSpace(args)
}

// page is text in the man(7) format.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// text adds paragraphs. Indented lines are kept as they are.
func (p *page) text(text string) {
	for i, part := range strings.Split(text, "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		lines := strings.Split(part, "\n")
		for len(lines) > 0 {
			n := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  ") })
			if n < 0 {
				n = len(lines)
			}
			for _, l := range lines[:n] {
				p.line("%s", roff(l))
			}
			if lines = lines[n:]; len(lines) == 0 {
				break
			}
			n = slices.IndexFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "  ") })
			if n < 0 {
				n = len(lines)
			}
			p.verbatim(strings.Join(lines[:n], "\n"))
			lines = lines[n:]
		}
	}
}

// verbatim adds lines unchanged, but without their first two spaces.
func (p *page) verbatim(text string) {
	p.line(".RS 2")
	p.line(".nf")
	for l := range strings.SplitSeq(text, "\n") {
		p.line("%s", roff(strings.TrimPrefix(l, "  ")))
	}
	p.line(".fi")
	p.line(".RE")
}

// option adds a flag.
func (p *page) option(f *pflag.Flag) {
	if f.Hidden {
		return
	}
	value, usage := pflag.UnquoteUsage(f)
	p.line(".TP")
	name := roff("--" + f.Name)
	if f.Shorthand != "" {
		name = roff("-"+f.Shorthand) + `\fR, \fB` + name
	}
	switch {
	case value != "" && f.NoOptDefVal != "":
		p.line(`\fB%s\fR[=\fI%s\fR]`, name, roff(value))
	case value != "":
		p.line(`\fB%s\fR \fI%s\fR`, name, roff(value))
	default:
		p.line(`\fB%s\fR`, name)
	}
	p.line("%s", roff(usage+defaultOf(f, usage)))
}

// defaultOf returns the text of a flag's default.
func defaultOf(f *pflag.Flag, usage string) string {
	switch f.DefValue {
	case "", "0", "0s", "false", "[]":
		return ""
	}
	if strings.Contains(usage, "(default") {
		return ""
	}
	return fmt.Sprintf(" (default %s)", strings.Trim(f.DefValue, "[]"))
}

// roff escapes a line of text so that it is printed literally.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", "\\`", `^`, `\(ha`, `~`, `\(ti`, `"`, `\(dq`).Replace(s)
	if strings.HasPrefix(s, ".") {
		return `\&` + s
	}
	return s
}
