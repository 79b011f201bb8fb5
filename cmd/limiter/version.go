package main

import (
	"fmt"

	"github.com/seed503877ad/limits/internal/settings"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version string

func programVersion() string { return settings.Version(version) }

func versionLine() string { return "limiter " + programVersion() }

type versionCmd struct{}

func (*versionCmd) Help() string {
	return `Examples:

  limiter version`
}

func (*versionCmd) Run(s *session) error {
	fmt.Fprintln(s.out, versionLine())
	return nil
}
