package alerts

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// FileOptions configure how an alerts file is read.
type FileOptions struct {
	// NoSecrets uses placeholders instead of reading env:NAME and file:/path, so that a file can be checked on a machine
	// that does not have them.
	NoSecrets bool
	// LookupEnv finds an environment variable; [os.LookupEnv] when nil.
	LookupEnv func(name string) (string, bool)
}

var fileFormat = yamlfile.Format{Name: "alerts file", Want: "rules", Shorten: "let rules match by globs instead of lists", Private: true,
	Durations: []string{"window", "within", "dedup", "resolveAfter"}}

// ParseRules compiles the text of an alerts file. name is its name in errors. The error is a *[yamlfile.Error] with every
// mistake found.
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

// RulesKeeper holds the current rules and reloads their file when it changes.
type RulesKeeper = yamlfile.Keeper[Rules]

// NewRulesKeeper reads the file. It fails if the file is invalid, or ctx ends first. The keeper does not notice a changed
// secret; its ForceReload method reads the file and the secrets.
func NewRulesKeeper(ctx context.Context, path string, o FileOptions, log *slog.Logger) (*RulesKeeper, error) {
	return yamlfile.NewKeeper(ctx, yamlfile.Config[Rules]{Path: path, What: "alerts", Log: log, Refers: true,
		Parse:    func(name string, data []byte) (*Rules, error) { return ParseRules(name, data, o) },
		Describe: func(r *Rules) []any { return []any{"rules", len(r.Rules), "channels", len(r.Channels)} },
	})
}

// Defaults of an alerts file.
const (
	defaultDenials  = 5
	defaultWithin   = 10 * time.Minute
	defaultDedup    = 10 * time.Minute
	defaultThrottle = 20
	defaultWindow   = "1h"
)

// Default returns the rules without a file: 5 denials in 10 minutes, to nats and the log, 20 alerts per user in any hour.
func Default() *Rules {
	r, err := ParseRules("the built-in rules", []byte("rules: [{name: denials}]"), FileOptions{})
	if err != nil {
		panic(err) // a test calls Default
	}
	return r
}

// builtInChannels are the channels that exist without being named in the file.
func builtInChannels() []ChannelSpec {
	return []ChannelSpec{{Name: ChannelNATS, Kind: ChannelNATS, Resolved: true}, {Name: ChannelLog, Kind: ChannelLog, Resolved: true}}
}
