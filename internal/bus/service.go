package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/natsconn"
	"github.com/seed503877ad/limits/internal/outage"
	"github.com/seed503877ad/limits/internal/overrides"
)

// Decider answers requests; *[engine.Engine] is one.
type Decider interface {
	Submit(r *engine.Request) error
	Status(ctx context.Context, key string) ([]engine.Counter, error)
	List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.Counter, bool, error)
	Reset(ctx context.Context, sel engine.Selection, dryRun bool) (int64, error)
	Settle(ctx context.Context, id string, cost int64) (engine.Decision, error)
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
	// WarningThreshold is the part of a limit, 0 to 1, at or below which a warning is raised. Below
	// 0 none is.
	WarningThreshold float64
	// OnError says how to answer when the store fails.
	OnError engine.OnError
	// Advice explains an error of the store to the caller: what is wrong, and what helps. It
	// returns an empty text if it does not know. May be nil.
	Advice func(error) string
	// Policies answer requests that name a policy or give attributes; nil for none. [policy.Keeper]
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
	Alerts Alerts
	// Lead configures that one of the workers on a store decides. If nil, this worker always
	// decides.
	Lead *LeadConfig
	// Logger is required.
	Logger *slog.Logger
}

func (c *ServiceConfig) defaults() error {
	switch {
	case c.Conn == nil:
		return errors.New("service: Conn is missing")
	case c.Engine == nil && c.Jobs == nil && c.Alerts == nil:
		return errors.New("service: Engine is missing, and so are Jobs and Alerts: there is nothing to serve")
	case c.Logger == nil:
		return errors.New("service: Logger is missing")
	}
	c.SchemaBase = strings.TrimRight(c.SchemaBase, "/")
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
	// calls is a pool of *call.
	calls sync.Pool
	// readSlots bound the admin requests that read the store, statusSlots those of status,
	// verifySlots the verify requests that wait for a look-up of their API key, and settleSlots the
	// settles. writeSlots bound the answers that must not be written on the reading goroutine.
	readSlots, statusSlots, verifySlots, settleSlots, writeSlots slots
	now                                                          func() time.Time
	// ctx is cancelled when Stop ends, so that requests that still read the store do not outlive
	// it.
	ctx    context.Context
	cancel context.CancelFunc

	// pending counts the requests that wait for their answer, unanswerable those that were dropped
	// because no answer may be sent, and lostAnswers the answers that the connection did not take.
	pending, unanswerable, lostAnswers atomic.Int64
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
	d, err := newDecoder(cfg.WarningThreshold)
	if err != nil {
		return nil, err
	}
	d.policies = cfg.Policies
	asked := new(logThrottle)
	d.onNoPolicies = func() {
		if n := asked.due(); n > 0 {
			cfg.Logger.Warn("requests ask for the policies that match, and pass without a limit: this limiter has none; start it with --policies FILE", "requests", n)
		}
	}
	if cfg.Overrides != nil {
		d.overrides = cfg.Overrides
	}
	s := &Service{
		cfg: cfg, decoder: d, now: time.Now, stopped: make(chan struct{}),
		readSlots: newSlots(maxReads), statusSlots: newSlots(maxStatuses), verifySlots: newSlots(maxVerifies),
		settleSlots: newSlots(maxSettles), writeSlots: newSlots(maxWrites),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.calls.New = s.newCall
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
	if guard := guardOf(cfg.Conn); guard != nil {
		var subjects []string
		for _, e := range s.endpoints(true) {
			subjects = append(subjects, e.subject)
		}
		guard.watch(subjects)
	}
	if cfg.Lead != nil {
		if s.lead, err = startLead(*cfg.Lead, s); err != nil {
			s.removeInline()
			_ = s.current.Stop()
			return nil, err
		}
	}
	return s, nil
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
		return fmt.Errorf("%w; a worker has about 40, and 60 for moments: raise max_subscriptions of the server, or of the account or user", err)
	}
	return nil
}

// call is a request on its way through the engine. Calls are pooled, together with the space for
// their only limit and their answer. The engine does not touch a request after it has called Done.
type call struct {
	engine.Request
	oneLimit    [1]engine.Limit
	reply, body []byte
	// conn is the connection that the request was read from; nil if it came through nats.go.
	conn *natsconn.Conn
	svc  *Service
	// answer is the method value c.done, made once to save an allocation for each request.
	answer func(d engine.Decision, err error)
}

func (s *Service) newCall() any {
	c := &call{svc: s, body: make([]byte, 0, 512)}
	c.answer = c.done
	return c
}

// handleDecision is the endpoint of consume, check, record and refund. nats.go runs the callbacks
// of an endpoint one at a time, so it only decodes the request and hands it to the engine. The
// answer is sent when the engine calls Done.
func (s *Service) handleDecision(m micro.Request) {
	if !answerable(m.Reply()) {
		s.ignore(m)
		return
	}
	c := s.acquireCall(nil, []byte(m.Reply()))
	err := c.decode(engineVerbs[m.Subject()], m.Data(), nil)
	if err == nil {
		err = c.submit()
	}
	if err != nil {
		s.refuse(m, err)
	}
}

// acquireCall returns a pooled call for a request that is answered to reply. conn is where the
// request was read, or nil if it came through nats.go.
func (s *Service) acquireCall(conn *natsconn.Conn, reply []byte) *call {
	c := s.calls.Get().(*call)
	c.conn, c.reply = conn, append(c.reply[:0], reply...)
	return c
}

// decode reads the request; lookup is as for [decoder.decode]. After an error the call is released.
func (c *call) decode(verb engine.Verb, data []byte, lookup *cacheLookup) error {
	c.Request = engine.Request{Limits: c.oneLimit[:0], OnError: c.svc.cfg.OnError, Done: c.answer}
	if c.conn != nil {
		c.Received = c.conn.ReceivedAt()
	}
	err := c.svc.decoder.decode(verb, data, lookup, &c.Request)
	if err != nil {
		c.release()
	}
	return err
}

// submit hands the request to the engine. After an error the call is released, and the caller
// answers.
func (c *call) submit() error {
	s := c.svc
	s.begin()
	err := s.cfg.Engine.Submit(&c.Request)
	if err != nil {
		c.release()
		s.end()
	}
	return err
}

// release returns the call to the pool.
func (c *call) release() {
	c.conn = nil
	c.svc.calls.Put(c)
}

// done answers the call. It publishes on the connection and not through the micro.Request: when the
// handler has returned, the endpoint reads that request's error without a lock.
func (c *call) done(d engine.Decision, err error) {
	s := c.svc
	if err != nil {
		s.publish(s.errorMsg(string(c.reply), err))
	} else {
		c.body = appendReply(c.body[:0], c.Verb, &d, c.Cost)
		if !c.answerInline() {
			c.answerViaNATS()
		}
	}
	c.release()
	s.end()
}

const (
	// maxReads bounds the admin requests that read the store at a time, and maxStatuses those of
	// status. More are answered 503.
	maxReads    = 32
	maxStatuses = 1024
	// readTimeout bounds a request that reads the store, as it does a decision: callers should
	// learn that the store does not answer before they give up.
	readTimeout = limits.DefaultTimeout * 3 / 4
	// scanTimeout bounds a request that may go through all rows. Our client waits longer for these.
	scanTimeout = 5 * time.Second
)

// answerFunc answers the body of a request with a value that becomes the JSON of the answer.
type answerFunc func(ctx context.Context, data []byte) (any, error)

// readHandler makes the handler of an endpoint that reads the store.
func (s *Service) readHandler(answer answerFunc) micro.HandlerFunc {
	return s.asyncHandler(s.readSlots, readTimeout, answer)
}

// scanHandler makes the handler of an endpoint that may have to go through many rows.
func (s *Service) scanHandler(answer answerFunc) micro.HandlerFunc {
	return s.asyncHandler(s.readSlots, scanTimeout, answer)
}

// asyncHandler makes a handler that answers on a goroutine of its own, or with 503 if no slot is
// free.
func (s *Service) asyncHandler(free slots, timeout time.Duration, answer answerFunc) micro.HandlerFunc {
	return func(m micro.Request) {
		if !answerable(m.Reply()) {
			s.ignore(m)
			return
		}
		s.begin()
		started := free.tryGo(func() {
			defer s.end()
			ctx, cancel := context.WithTimeout(s.ctx, timeout)
			defer cancel()
			s.answerRead(ctx, m, answer)
		})
		if !started {
			s.refuse(m, engine.ErrOverloaded)
			s.end()
		}
	}
}

// slots bound how many goroutines run at a time.
type slots chan struct{}

func newSlots(n int) slots { return make(slots, n) }

// tryGo runs f on a goroutine of its own, if a slot is free.
func (s slots) tryGo(f func()) bool {
	select {
	case s <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-s }()
		f()
	}()
	return true
}

// answerRead answers a request with the JSON of what answer returns, or with its error.
func (s *Service) answerRead(ctx context.Context, m micro.Request, answer answerFunc) {
	v, err := answer(ctx, m.Data())
	var body []byte
	if err == nil {
		body, err = json.Marshal(v)
	}
	if err != nil {
		if e := wireError(err, nil); e.Status == 503 {
			s.noteStoreFailure(m.Subject(), err)
		}
		s.publish(s.errorMsg(m.Reply(), err))
		return
	}
	s.noteStoreAnswer(m.Subject())
	s.answer(m.Reply(), body)
}

// answer publishes an answer, of which nats.go makes a copy. Instead of an answer that is larger
// than NATS takes it publishes an error that says so.
func (s *Service) answer(reply string, body []byte) {
	err := s.cfg.Conn.Publish(reply, body)
	if errors.Is(err, nats.ErrMaxPayload) {
		err = s.cfg.Conn.PublishMsg(s.errorMsg(reply, &limits.Error{Status: 413, Code: limits.CodeTooLarge, Message: fmt.Sprintf(
			"the answer has %d bytes, and NATS takes %d; ask for fewer at a time with max, or for fewer limits, whose decision stands",
			len(body), s.cfg.Conn.MaxPayload())}))
	}
	s.sent(err)
}

// noteStoreFailure and noteStoreAnswer keep the log of an endpoint: it tells when the store begins
// to fail the requests of a subject, and when that is over.
func (s *Service) noteStoreFailure(subject string, err error) {
	log, known := s.failures.Load(subject)
	if !known {
		log, _ = s.failures.LoadOrStore(subject, outage.New(s.cfg.Logger, slog.LevelWarn, "the store fails requests", "the store answers "+subject+" again"))
	}
	log.(*outage.Log).Tried(err, "endpoint", subject)
}

func (s *Service) noteStoreAnswer(subject string) {
	if log, failed := s.failures.Load(subject); failed {
		log.(*outage.Log).Tried(nil)
	}
}

// refuse answers an error while the handler runs, so that the statistics of the endpoint count it.
func (s *Service) refuse(m micro.Request, err error) {
	msg := s.errorMsg(m.Reply(), err)
	s.sent(m.Error(msg.Header.Get(micro.ErrorCodeHeader), msg.Header.Get(micro.ErrorHeader), msg.Data))
}

func (s *Service) publish(m *nats.Msg) { s.sent(s.cfg.Conn.PublishMsg(m)) }

// sent notes whether the connection took an answer. The first that it did not take is logged, and
// then every 1000th.
func (s *Service) sent(err error) {
	if err == nil {
		return
	}
	if n := s.lostAnswers.Add(1); n%1000 == 1 {
		s.cfg.Logger.Warn("publish reply", "error", err, "lost", n)
	}
}

// ignore drops a request that cannot be answered. The first is logged, and then every 1000th.
func (s *Service) ignore(m micro.Request) {
	if n := s.unanswerable.Add(1); n%1000 == 1 {
		s.cfg.Logger.Warn("a request has no reply subject, or one that is not answered", "subject", m.Subject(), "reply", m.Reply(), "ignored", n)
	}
}

// answerable reports whether an answer may be sent to a reply subject. The client chooses that
// subject and the service publishes with its own rights, so the subject must not be one of the
// server ($JS.API, $SYS) or of events. A reply subject that is too long arrives only over a
// websocket, because natsconn drops it elsewhere.
func answerable[T string | []byte](reply T) bool {
	begins := func(with string) bool { return len(reply) >= len(with) && string(reply[:len(with)]) == with }
	return len(reply) > 0 && len(reply) <= natsconn.MaxReplySubject && !begins("$") && !begins("limits.") && !begins("alerts.")
}

// begin and end count the requests that wait for an answer; Stop waits for all of them.
func (s *Service) begin() { s.pending.Add(1) }

func (s *Service) end() { s.pending.Add(-1) }

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
