package alerts

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// FileOptions are what an alerts file needs beside itself.
type FileOptions struct {
	// NoSecrets puts stand-ins in the place of what env:NAME and file:/path hold, so that a file can be checked where
	// they are not.
	NoSecrets bool
	// LookupEnv finds an environment variable; [os.LookupEnv] when nil.
	LookupEnv func(name string) (string, bool)
}

var fileFormat = yamlfile.Format{Name: "alerts file", Want: "rules", Shorten: "let rules match by globs instead of lists", Private: true,
	Durations: []string{"window", "within", "dedup", "resolveAfter"}}

// ParseRules reads the text of an alerts file, which errors call name. The error is a *[yamlfile.Error] with every mistake found.
func ParseRules(name string, data []byte, o FileOptions) (*Rules, error) {
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	c := fileCompiler{Problems: yamlfile.New(fileFormat), options: o, rules: &Rules{}}
	var file File
	if c.Read(data, &file) {
		c.compile(&file)
	}
	if err := c.Err(name); err != nil {
		return nil, err
	}
	return c.rules, nil
}

// RulesKeeper holds the rules in force and reads their file anew when it changes.
type RulesKeeper = yamlfile.Keeper[Rules]

// NewRulesKeeper reads the file, which must be right, or gives up with ctx. A secret that changed is not seen by the watch:
// ForceReload reads all.
func NewRulesKeeper(ctx context.Context, path string, o FileOptions, log *slog.Logger) (*RulesKeeper, error) {
	return yamlfile.NewKeeper(ctx, yamlfile.Config[Rules]{Path: path, What: "alerts", Log: log, Refers: true,
		Parse:    func(name string, data []byte) (*Rules, error) { return ParseRules(name, data, o) },
		Describe: func(r *Rules) []any { return []any{"rules", len(r.Rules), "channels", len(r.Channels)} },
	})
}

// What holds where the file does not say.
const (
	defaultDenials  = 5
	defaultWithin   = 10 * time.Minute
	defaultDedup    = 10 * time.Minute
	defaultThrottle = 20
	defaultWindow   = "1h"
)

// Default gives the rules without a file: 5 denials in 10 minutes, to nats and the log, 20 alerts per user in any hour.
func Default() *Rules {
	r, err := ParseRules("the built-in rules", []byte("rules: [{name: denials}]"), FileOptions{})
	if err != nil {
		panic(err) // a test reads them
	}
	return r
}

// builtInChannels are there without being named.
func builtInChannels() []ChannelSpec {
	return []ChannelSpec{{Name: ChannelNATS, Kind: ChannelNATS, Resolved: true}, {Name: ChannelLog, Kind: ChannelLog, Resolved: true}}
}
