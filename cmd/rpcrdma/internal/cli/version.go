package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// NewVersion returns the command version.
func NewVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print what this binary was built from",
		Args:  WantArgs(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return printOwnVersion(cmd.OutOrStdout()) },
	}
}

func printOwnVersion(w io.Writer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return printVersion(w, info)
}

// printVersion prints what the build recorded. A binary built outside of a repository has no revision.
func printVersion(w io.Writer, info *debug.BuildInfo) error {
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	cgo := "without cgo"
	if settings["CGO_ENABLED"] == "1" {
		cgo = "with cgo"
	}
	if _, err := fmt.Fprintf(w, "rpcrdma %s, %s %s/%s, %s\n", version, info.GoVersion, runtime.GOOS, runtime.GOARCH, cgo); err != nil {
		return err
	}
	if rev := settings["vcs.revision"]; rev != "" {
		dirty := ""
		if settings["vcs.modified"] == "true" {
			dirty = ", with changes"
		}
		_, err := fmt.Fprintf(w, "revision %s of %s%s\n", rev, settings["vcs.time"], dirty)
		return err
	}
	return nil
}
