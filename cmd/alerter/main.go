// Command alerter turns the events of limiters into alerts, and runs the scheduled jobs of the service.
//
// It runs beside limiters that share a NATS cluster and a PostgreSQL database: they decide, it sends alerts. Any number of
// alerters may run; each event, job run and delivery is handled by one of them. A limiter that has no such servers does the
// work of an alerter itself.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	_ "time/tzdata" // quiet hours need time zones also on machines without a zone database

	"github.com/alecthomas/kong"

	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/settings"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version string

// The exit statuses.
const (
	exitDone  = 0
	exitError = 1
	exitUsage = 2
)

// command is the command line. It has no verbs: `limiter alerts` and `limiter jobs` are the clients of an alerter.
type command struct {
	settings.NATS `set:"unset=required"`
	DatabaseURL   string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"The PostgreSQL of the limiters (required)."`
	HTTP          string `name:"http" env:"HTTP_ADDR" default:"127.0.0.1:8081" placeholder:"ADDR" help:"Where the dashboard, health, metrics and schemas are served; off for none, port 0 picks a free one (${default})."`
	Source        string `name:"source" env:"SOURCE" default:"urn:limits" placeholder:"URI" help:"Source of the CloudEvents: a URI that names this service (${default})."`
	settings.Alerts
	settings.Jobs
	settings.Log
	Version kong.VersionFlag `help:"Print the version."`
}

func (*command) Help() string {
	return `Examples:

  alerter --nats-url nats://nats:4222 --database-url postgres://limits@db/limits
      with the built-in rule: 5 denials in 10 minutes, published on the NATS subject alerts.raised and logged

  alerter --nats-url nats://nats:4222 --database-url postgres://limits@db/limits --alerts alerts.yaml
      with rules and channels; see limiter alerts validate --help

Ask it over NATS: limiter alerts list, limiter alerts test-send, limiter jobs list.`
}

func (c *command) Validate() error {
	var missing []string
	if c.NATSURL == "" {
		missing = append(missing, "--nats-url")
	}
	if c.DatabaseURL == "" {
		missing = append(missing, "--database-url")
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing flags: %s: an alerter works for limiters that share a NATS server and a PostgreSQL database;"+
			" a limiter without them runs its own alerter", strings.Join(missing, ", "))
	}
	return errors.Join(settings.CheckAddress("--http", c.HTTP, "127.0.0.1:8081", "off"), c.NATS.Validate(), c.Jobs.Validate())
}

func main() {
	os.Exit(run(settings.UntilSignal(exitError), os.Args[1:], os.Stdout, os.Stderr))
}

// run parses the arguments, runs the alerter and returns the exit status.
func run(ctx context.Context, args []string, out, log io.Writer) (status int) {
	help := &output{to: out}
	defer func() {
		if help.err != nil { // of --help or --version
			fmt.Fprintf(log, "alerter: the output is incomplete: %v\n", help.err)
			status = exitError
		}
	}()
	defer settings.Exited(&status)
	var c command
	k, err := parser(&c, help, log).Parse(args)
	if help.err != nil {
		return exitError
	}
	if err != nil {
		return wrongUsage(log, k, err)
	}
	o, err := c.options()
	if err != nil {
		return wrongUsage(log, k, err)
	}
	settings.CollectLess()
	settings.FitContainer()
	if err := app.RunAlerter(ctx, o, c.Logger(log)); err != nil {
		if errors.Is(err, app.ErrOptions) {
			return wrongUsage(log, k, err)
		}
		fmt.Fprintf(log, "alerter: %v\n", err)
		return exitError
	}
	return exitDone
}

// output is a writer that keeps its first error, which kong ignores.
type output struct {
	to  io.Writer
	err error
}

func (o *output) Write(text []byte) (n int, err error) {
	n, err = o.to.Write(text)
	o.err = cmp.Or(o.err, err)
	return n, err
}

func wrongUsage(log io.Writer, k *kong.Context, err error) (status int) {
	fmt.Fprintf(log, "alerter: %s\nsee: alerter --help\n", settings.Explain(k, err))
	return exitUsage
}

func parser(c *command, out, log io.Writer) *kong.Kong {
	return kong.Must(c,
		kong.Name("alerter"),
		kong.Description("Turns the events of limiters into alerts, each sent once, and at most 20 per user in an hour."),
		kong.Writers(out, log),
		kong.Exit(settings.Exit),
		settings.Parsing(),
		kong.Vars{"version": "alerter " + settings.Version(version)},
	)
}

func (c *command) options() (app.Options, error) {
	o := app.Options{DatabaseURL: c.DatabaseURL, HTTPAddr: c.HTTP, Source: c.Source, Version: settings.Version(version)}
	c.NATS.Set(&o)
	c.Jobs.Set(&o)
	err := c.Alerts.Set(&o)
	return o, err
}
