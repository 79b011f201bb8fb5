package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
)

// Decider answers requests; *[engine.Engine] is one.
type Decider interface {
	Submit(r *engine.Request) error
	TooLate(received time.Time) bool
	Forget(what engine.Forget)
	Status(ctx context.Context, key string) ([]engine.Counter, error)
	StatusOf(ctx context.Context, ls []engine.Limit) ([]engine.Counter, error)
	List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.Counter, bool, error)
	Reset(ctx context.Context, sel engine.Selection, dryRun bool) (int64, error)
}

// ServiceConfig configures a [Service].
type ServiceConfig struct {
	// Conn is used by this service alone, because Stop takes a connection without subscriptions as
	// the sign that all requests were taken. Required.
	Conn *nats.Conn
	// Engine decides. Without it only the endpoints of Jobs and Alerts are served, as in an
	// alerter.
	Engine Decider
	// Version is the program's version. A text that is no semantic version is shown as 0.0.0.
	Version string
	// SchemaBase is the URL of the folder of the schemas, such as "http://127.0.0.1:8080/schemas".
	SchemaBase string
	// WarningThreshold is the part of a limit, 0 to 1, at or below which a warning is raised.
	WarningThreshold float64
	// OnError says how to answer when the store fails.
	OnError engine.OnError
	// Advice explains an error of the store to the caller: what is wrong, and what helps. It
	// returns an empty text if it does not know. May be nil.
	Advice func(error) string
	// Policies answer requests that name a policy or give attributes; nil for none. *[policy.Keeper]
	// is one.
	Policies Policies
	// UsageLog takes the request log, and Usage answers admin.top and admin.usage. The subjects of
	// a nil one are not served.
	UsageLog UsageLog
	Usage    UsageReader
	// Keys answers verify and admin.keys. Overrides answers admin.overrides, and is looked up when
	// a policy is resolved. The endpoints of a nil one are not served.
	Keys      *keys.Registry
	Overrides *overrides.Table
	// Jobs answers admin.jobs. If nil, these endpoints are not served.
	Jobs Jobs
	// Alerts answers admin.alerts. If nil, these endpoints are not served.
	Alerts *alerts.Admin
	// Lead configures that one of the workers on a store decides. If nil, this worker always
	// decides.
	Lead *LeadConfig
	// Logger is required.
	Logger *slog.Logger
	// storeTimeout and scanTimeout are the constants, unless a test sets them.
	storeTimeout, scanTimeout time.Duration
}

func (c *ServiceConfig) defaults() error {
	switch {
	case c.Conn == nil:
		return errors.New("service: Conn is missing")
	case c.Engine == nil && c.Jobs == nil && c.Alerts == nil:
		return errors.New("service: Engine, Jobs and Alerts are missing; there is nothing to serve")
	case c.Logger == nil:
		return errors.New("service: Logger is missing")
	}
	c.SchemaBase = strings.TrimRight(c.SchemaBase, "/")
	c.storeTimeout, c.scanTimeout = cmp.Or(c.storeTimeout, storeTimeout), cmp.Or(c.scanTimeout, scanTimeout)
	return nil
}

// Service is the micro service "limits" on one connection.
type Service struct {
	cfg ServiceConfig
	// current answers requests. When the worker begins or stops to decide, next takes its place as
	// soon as the server has confirmed its subscriptions.
	current, next *microService
	lead          *lead
	// otherSubs counts the subscriptions of the connection that belong neither to current, next nor
	// lead. controlSubs counts those that each micro service has besides its endpoints.
	otherSubs, controlSubs int
	// drainingSince is when the micro service that was replaced began to drain, zero if none does.
	// reconnectsBefore is how often the connection had been made anew by then.
	drainingSince    time.Time
	reconnectsBefore uint64

	decoder *decoder
	// verifies has the requests for verify that came before, by the SHA-256 of their bodies; nil without Keys.
	verifies *requestCache
	// overloaded is the answer to a request that is refused because there are too many, made once
	// because there are many.
	overloaded *nats.Msg
	// calls is a pool of *call.
	calls sync.Pool
	// storeSlots bound the admin requests that use the store at a time, reportSlots those that
	// report on usage, statusSlots those of status, and verifySlots the verify requests that wait for a look-up of their API
	// key. writeSlots bound the answers that must not be written on the reading goroutine.
	storeSlots, reportSlots, statusSlots, verifySlots, writeSlots slots
	now                                                           func() time.Time
	// ctx is cancelled when Stop ends, so that requests that still read the store do not outlive
	// it.
	ctx    context.Context
	cancel context.CancelFunc

	// pending counts the requests that wait for their answer, and lostAnswers the answers that the
	// connection did not take. ignoredLog is for requests that no answer may be sent to.
	pending, lostAnswers atomic.Int64
	lostLog, ignoredLog  logThrottle
	// invalidLines is for lines of the request log.
	invalidLines heldLog
	// failures has an [outage.Log] by subject, for each subject that ever failed because of the
	// store.
	failures sync.Map
	stopOnce sync.Once
	stopped  chan struct{}
	stopErr  error
}

// NewService starts to answer. It returns when the server has confirmed the subscriptions.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	d, err := cfg.newDecoder()
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, decoder: d, now: time.Now, stopped: make(chan struct{}),
		storeSlots: make(slots, maxStoreRequests), reportSlots: make(slots, maxReports), statusSlots: make(slots, maxStatuses),
		verifySlots: make(slots, maxVerifies), writeSlots: make(slots, maxWrites),
	}
	if cfg.Keys != nil {
		s.verifies = newRequestCache()
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.calls.New, s.overloaded = s.newCall, s.newErrorMsg("", engine.ErrOverloaded)
	s.invalidLines.write = s.warnOfLines
	s.otherSubs = cfg.Conn.NumSubscriptions()
	if s.current, err = s.startMicro(true); err != nil {
		return nil, err
	}
	s.controlSubs = cfg.Conn.NumSubscriptions() - s.otherSubs - s.current.endpoints
	if err := confirmSubscriptions(cfg.Conn); err != nil {
		_ = s.current.Stop()
		return nil, fmt.Errorf("subscribe endpoints: %w", err)
	}
	s.installInline()
	s.watchSubscriptions()
	if cfg.Lead != nil {
		if s.lead, err = startLead(*cfg.Lead, s); err != nil {
			s.removeInline()
			_ = s.current.Stop()
			return nil, err
		}
	}
	return s, nil
}

func (c *ServiceConfig) newDecoder() (*decoder, error) {
	d, err := newDecoder(c.WarningThreshold)
	if err != nil {
		return nil, err
	}
	d.policies, d.overrides = c.Policies, c.Overrides
	asked := new(logThrottle)
	d.onNoPolicies = func() {
		if n := asked.due(); n > 0 {
			c.Logger.Warn("requests ask for matching policies, but this limiter has none, so they pass without a limit; "+
				"start it with --policies FILE", "requests", n)
		}
	}
	return d, nil
}

// watchSubscriptions has the connection's guard watch the subjects of all endpoints.
func (s *Service) watchSubscriptions() {
	guard := guardOf(s.cfg.Conn)
	if guard == nil {
		return
	}
	var subjects []string
	for _, e := range s.endpoints(true) {
		subjects = append(subjects, e.subject)
	}
	guard.watch(subjects)
}

// Deciding reports whether this worker decides. If not, it stands by.
func (s *Service) Deciding() bool { return s.lead == nil || s.lead.deciding.Load() }

// confirmTimeout bounds how long the server may take to confirm all subscriptions, or all answers.
const confirmTimeout = 5 * time.Second

// confirmSubscriptions waits until the server has all subscriptions, because only then is a service
// ready. A refusal arrives before the server's confirmation, but only as the connection's last
// error.
func confirmSubscriptions(nc *nats.Conn) error {
	if err := nc.FlushTimeout(confirmTimeout); err != nil {
		return err
	}
	switch err := nc.LastError(); {
	case errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "Subscription"):
		return fmt.Errorf("%w; grant it to the NATS user: docs/operations.md, Permissions in NATS", err)
	case errors.Is(err, nats.ErrMaxSubscriptionsExceeded):
		return fmt.Errorf("%w; a worker needs about 40, and briefly 60: raise max_subscriptions of the server, or of the account or user", err)
	}
	return nil
}

// sleep waits for d, or returns the error of ctx if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var semverPattern = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// semver returns the version as the micro service specification wants it.
func semver(version string) string {
	if v := strings.TrimPrefix(version, "v"); semverPattern.MatchString(v) {
		return v
	}
	return "0.0.0"
}
