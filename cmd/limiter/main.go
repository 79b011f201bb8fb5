// Command limiter runs a rate limiter on NATS, and is a client of one.
//
// Without a verb it serves. The client verbs speak only NATS, so they work on any machine that reaches the NATS server.
// Each verb is a struct whose tags define its flags. Its method Validate checks what the tags cannot express, Help returns
// the examples of --help, and Run does the work. This file parses the arguments and maps the result to an exit status; it
// does not know what the verbs do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // calendar windows need time zones also on machines without a zone database

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"golang.org/x/term"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/settings"
)

// The exit statuses.
const (
	exitDone   = 0 // done, or allowed
	exitError  = 1
	exitUsage  = 2 // also if the service finds the mistake and answers 400
	exitDenied = 3
)

// errDenied sets the exit status of a denial. It prints no message, because the reply was printed.
var errDenied = errors.New("denied")

// usageError is a usage error that is found when the verb runs.
type usageError string

func (e usageError) Error() string { return string(e) }

// commands are the verbs.
type commands struct {
	Serve       serveCmd       `cmd:"" default:"withargs" help:"Run a limiter (the default)."`
	Consume     consumeCmd     `cmd:"" help:"Decide and charge."`
	Check       checkCmd       `cmd:"" help:"Decide, charge nothing."`
	Record      recordCmd      `cmd:"" help:"Charge what already happened, even past the limit."`
	Refund      refundCmd      `cmd:"" help:"Give cost back."`
	Settle      settleCmd      `cmd:"" help:"Set the final cost of an earlier consume or verify."`
	Show        showCmd        `cmd:"" help:"Show the counters of a key."`
	List        listCmd        `cmd:"" help:"List counters."`
	Reset       resetCmd       `cmd:"" help:"Set counters back to unused."`
	Top         topCmd         `cmd:"" help:"Show which keys were denied, or used, most."`
	Usage       usageCmd       `cmd:"" help:"Show traffic by key, slowest endpoints, or errors, from the request log."`
	Verify      verifyCmd      `cmd:"" help:"Verify an API key and charge the limits of its user."`
	Keys        keysCmd        `cmd:"" help:"Make, list and end API keys."`
	Overrides   overridesCmd   `cmd:"" help:"Give other limits to some subjects of a policy."`
	Jobs        jobsCmd        `cmd:"" help:"List and run the scheduled jobs of the service, and show their history."`
	Alerts      alertsCmd      `cmd:"" help:"List alerts, silence them, try channels and rules, and replay what was not delivered."`
	Watch       watchCmd       `cmd:"" help:"Show warnings and denials as they happen."`
	Policies    policiesCmd    `cmd:"" help:"Check a policy file, show it, or explain what it does to a request."`
	Bench       benchCmd       `cmd:"" help:"Measure how many checks a second the service answers."`
	Migrate     migrateCmd     `cmd:"" help:"Bring a PostgreSQL schema up to date, or show where it is."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask a limiter on this machine whether it is ready (for containers)."`
	Version     versionCmd     `cmd:"" help:"Print the version."`

	VersionFlag kong.VersionFlag `name:"version" help:"Print the version."`
}

func (*commands) Help() string {
	return `Examples:

  limiter
      runs a limiter, all in one on this machine

  limiter consume api:user:7 --limit 100 --window 1m
      asks it

Exit status: 0 done or allowed, 1 an error, 2 wrong usage, also if the service finds it (an error 400), 3 denied.`
}

// session is the part of the process that a verb may use.
type session struct {
	ctx context.Context
	in  io.Reader
	out *stdout
	err io.Writer
	// inTTY and errTTY say that in and err are terminals.
	inTTY, errTTY bool
	// now is the clock, in the zone in which times are shown.
	now func() time.Time
}

func main() {
	os.Exit(run(newParser(), os.Args[1:], &session{
		ctx: settings.UntilSignal(exitError), in: os.Stdin, out: &stdout{to: os.Stdout}, err: os.Stderr, now: time.Now,
		inTTY:  term.IsTerminal(int(os.Stdin.Fd())),
		errTTY: term.IsTerminal(int(os.Stderr.Fd())),
	}))
}

// run parses the arguments, runs the verb and returns the exit status. Making a parser takes longer than most verbs, so tests
// share one.
func run(parser *kong.Kong, args []string, s *session) (status int) {
	defer func() {
		if status == exitDone { // kong does not check whether the output of --version was written
			status = exitStatus(s, nil, nil)
		}
	}()
	defer settings.Exited(&status)
	s.ctx, s.out.end = context.WithCancel(s.ctx)
	defer s.out.end()
	parser.Stdout, parser.Stderr = s.out, s.err
	k, err := parser.Parse(args)
	if s.out.err != nil { // of --help or --version
		return exitStatus(s, nil, nil)
	}
	if err != nil {
		err = suggestVerb(parser, args, err)
		fmt.Fprintf(s.err, "limiter: %s%s\n%s\n", settings.Explain(nil, err), dashHint(err, args), helpHint(err))
		return exitUsage
	}
	if status = exitStatus(s, k, k.Run(s)); status == exitUsage {
		fmt.Fprintf(s.err, "see: %s --help\n", k.Selected().FullPath())
	}
	return status
}

func newParser() *kong.Kong {
	return kong.Must(&commands{},
		kong.Name("limiter"),
		kong.Description("Rate limiting as a service on NATS. Without a verb it runs a limiter: on a laptop that"+
			" needs nothing else, it brings its own NATS server and keeps its counters in ./data."),
		kong.Exit(settings.Exit),
		settings.Parsing(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"version": versionLine()},
	)
}

// suggestVerb returns the error of a mistyped verb with the verb that may be meant. With a default verb kong suggests none: it
// takes the word for an argument of serve.
func suggestVerb(parser *kong.Kong, args []string, err error) error {
	serve := parser.Model.DefaultCmd
	parser.Model.DefaultCmd = nil
	defer func() { parser.Model.DefaultCmd = serve }()
	c, traceErr := kong.Trace(parser, args)
	if traceErr == nil && c.Error != nil && strings.HasPrefix(c.Error.Error(), err.Error()+", did you mean ") {
		return c.Error
	}
	return err
}

func helpHint(err error) string {
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil {
		switch verb := parse.Context.Selected(); {
		case verb != nil && verb.Name != "serve":
			return "see: " + verb.FullPath() + " --help"
		// A mistyped verb is parsed as an argument of serve, whose help would be of no use.
		case !strings.HasPrefix(err.Error(), "unexpected argument"):
			return "see: limiter serve --help"
		}
	}
	return "see: limiter --help"
}

// dashHint shows how to give an argument that begins with a dash, such as the id of a chat, if it was taken for a flag.
func dashHint(err error, args []string) string {
	flag, unknown := strings.CutPrefix(err.Error(), "unknown flag -")
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !unknown || flag == "" || flag[0] == '-' || !ok || parse.Context.Selected() == nil || len(parse.Context.Selected().Positional) == 0 {
		return ""
	}
	for _, arg := range args {
		if strings.HasPrefix(arg, "-"+flag[:1]) {
			return "; an argument that begins with - needs -- before it, after all flags: " +
				parse.Context.Selected().FullPath() + " [flags] -- " + strings.Map(settings.Shown, arg)
		}
	}
	return ""
}

// inboxHint names the setting that helps if the user may not subscribe to this client's inbox: roles may have inbox
// prefixes of their own, and the server's error does not say so. A refused subscription to events is something else.
func inboxHint(err error) string {
	_, subject, found := strings.Cut(err.Error(), `Subscription to "`)
	if !found || !errors.Is(err, nats.ErrPermissionViolation) || strings.HasPrefix(subject, "limits.") || strings.HasPrefix(subject, "alerts.") {
		return ""
	}
	return "; answers need a reply subject that this user may subscribe to: set its prefix with --nats-inbox-prefix " +
		"(NATS_INBOX_PREFIX), such as _INBOX_check"
}

// policyHint says what a person can type to list the policies. The service, which programs ask too, names only a subject.
func policyHint(err error) string {
	if e, ok := errors.AsType[*limits.Error](err); ok && e.Code == limits.CodeUnknownPolicy && strings.Contains(e.Message, limits.SubjectPolicies) {
		return "; see limiter policies show FILE, or: nats request " + limits.SubjectPolicies + " '{}'"
	}
	return ""
}

// exitStatus prints an error and returns its exit status. k is the parsed command line, or nil.
func exitStatus(s *session, k *kong.Context, err error) int {
	if writeErr := s.out.err; writeErr != nil && (err == nil || errors.Is(err, errDenied) || errors.Is(err, context.Canceled)) {
		// The reader has seen enough, as in limiter list | head -1. Usually SIGPIPE has ended the process by now.
		if errors.Is(writeErr, syscall.EPIPE) {
			return exitError
		}
		err = fmt.Errorf("the output is incomplete: %w", writeErr)
	}
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errDenied):
		return exitDenied
	}
	text, status := strings.Map(settings.Shown, err.Error()), exitError
	answer, _ := errors.AsType[*limits.Error](err)
	_, usage := errors.AsType[usageError](err)
	if usage || errors.Is(err, app.ErrOptions) || answer != nil && answer.Status == 400 {
		text, status = settings.Explain(k, err), exitUsage
	}
	fmt.Fprintf(s.err, "limiter: %s%s%s\n", text, inboxHint(err), policyHint(err))
	return status
}
