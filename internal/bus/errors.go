package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
)

// wireError returns the error of the wire contract for err. An error that is not the engine's is
// the store's: its text is not for callers, except for what advice says about it.
func wireError(err error, advice func(error) string) *limits.Error {
	var we *limits.Error
	var fe *engine.FieldError
	switch {
	case errors.As(err, &we):
		return we
	case errors.As(err, &fe):
		return &limits.Error{Status: 400, Code: "invalid_" + fe.Field, Field: fe.Field, Message: fe.Message}
	case errors.Is(err, engine.ErrCorrupt): // its text has only keys and a few bytes, so it may be shown
		return &limits.Error{Status: 503, Code: limits.CodeUnavailable, Message: fmt.Sprintf("%v; reset the counter to start over: limiter reset KEY", err)}
	case errors.Is(err, engine.ErrOverloaded):
		return &limits.Error{Status: 503, Code: limits.CodeOverloaded, Message: "the worker has too many requests waiting; try again soon"}
	case errors.Is(err, engine.ErrIDConflict): // its text names the id
		return &limits.Error{Status: 409, Code: limits.CodeIDConflict, Field: "id",
			Message: replaceUnprintable(err.Error()) + " in the last 10 minutes; use a new id for each request"}
	case errors.Is(err, engine.ErrManyCounters):
		return &limits.Error{Status: 413, Code: limits.CodeTooLarge, Field: "key",
			Message: err.Error() + "; " + limits.SubjectList + " (limiter list --prefix KEY) lists them page by page"}
	case errors.Is(err, engine.ErrClosed):
		return &limits.Error{Status: 503, Code: limits.CodeUnavailable, Message: "the worker is stopping; try again"}
	case errors.Is(err, context.DeadlineExceeded):
		return &limits.Error{Status: 503, Code: limits.CodeUnavailable, Message: "the store did not answer in time; try again soon"}
	default:
		what := "the store is unavailable; try again soon"
		if advice != nil {
			what = cmp.Or(advice(err), what)
		}
		return &limits.Error{Status: 503, Code: limits.CodeUnavailable, Message: what}
	}
}

// errorMsg is the message that answers err. An API key that came in the place of something else, whose value the message
// quotes, is not shown: messages are kept as statistics, and callers log them.
func (s *Service) errorMsg(subject string, err error) *nats.Msg {
	if errors.Is(err, engine.ErrOverloaded) {
		return &nats.Msg{Subject: subject, Header: s.overloaded.Header, Data: s.overloaded.Data}
	}
	return s.newErrorMsg(subject, err)
}

func (s *Service) newErrorMsg(subject string, err error) *nats.Msg {
	shown := *wireError(err, s.cfg.Advice)
	we := &shown
	we.Message, we.Field = keys.Mask(we.Message), keys.Mask(we.Field)
	m := nats.NewMsg(subject)
	m.Header[micro.ErrorHeader] = []string{we.Message}
	m.Header[micro.ErrorCodeHeader] = []string{strconv.Itoa(we.Status)}
	// The JSON of an Error has only strings, so encoding it cannot fail.
	m.Data, _ = json.Marshal(limits.ErrorBody{Error: we})
	return m
}
