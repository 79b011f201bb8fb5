package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version string

// programVersion names the build: the release, else the module's version or commit as the Go tool knows it.
func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if version != "" || !ok {
		return cmp.Or(version, "(devel)")
	}
	return cmp.Or(info.Main.Version, "(devel)")
}

type versionCmd struct{}

// Help gives the examples of --help.
func (*versionCmd) Help() string {
	return `Examples:

  limiter version`
}

func (*versionCmd) Run(s *session) error {
	fmt.Fprintln(s.out, "limiter", programVersion())
	return nil
}
