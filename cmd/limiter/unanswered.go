package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// noAnswer reports whether err says that a request was sent and got no answer in time, or before a signal.
func noAnswer(err error) bool {
	refused := errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `Publish to "`)
	return (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) && !refused
}

// unanswered adds to an error of [noAnswer] how long it took, and what the limiter may have done nevertheless.
func (f *clientFlags) unanswered(s *session, subject string, request any, err error) error {
	if !noAnswer(err) {
		return err
	}
	switch {
	case s.ctx.Err() == nil:
		err = fmt.Errorf("%w; waited %v (--timeout)", err, f.Timeout)
	case s.out.err == nil: // otherwise a write of the output has failed, and not a signal came
		err = fmt.Errorf("%s: interrupted before the answer", subject)
	}
	if may := mayHaveDone(subject, request); may != "" {
		err = fmt.Errorf("%w; %s", err, may)
	}
	return err
}

// mayHaveDone returns what a request that got no answer may have done. It is empty for one that only reads.
func mayHaveDone(subject string, request any) string {
	if r, ok := request.(limits.ResetRequest); ok && r.DryRun {
		return ""
	}
	switch subject {
	case limits.SubjectConsume, limits.SubjectRecord, limits.SubjectVerify:
		return "it may have been charged; with an id it can be sent again safely"
	case limits.SubjectRefund:
		return "it may have been given back; with an id it can be sent again safely"
	case limits.SubjectKeysCreate:
		if r, ok := request.(limits.CreateKeyRequest); ok {
			return fmt.Sprintf("a key that nobody has may have been created: see limiter keys list --user=%s, and revoke it with: limiter keys revoke ID",
				shellWord(r.User))
		}
	case limits.SubjectSettle, limits.SubjectReset, limits.SubjectKeysRevoke, limits.SubjectKeysExpire,
		limits.SubjectOverridesSet, limits.SubjectOverridesDelete, limits.SubjectJobsRun,
		limits.SubjectAlertsSilence, limits.SubjectAlertsUnsilence, limits.SubjectAlertsReplay, limits.SubjectAlertsTest:
		return "it may have been carried out"
	}
	return ""
}
