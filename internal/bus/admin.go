package bus

import (
	"context"
	"strings"

	limits "github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// The answers that read or remove counters: status, admin.list, admin.reset. They are rare, so they are built of
// the wire types as they are.

func (s *Service) status(ctx context.Context, data []byte) (any, error) {
	r := newReader()
	var key string
	err := r.document(data, func(name []byte) (err error) {
		if string(name) != "key" {
			return r.unknown(name, "key")
		}
		b, err := r.printable("key", 1, limits.MaxKeyBytes)
		key = string(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if key == "" {
		return nil, badInput("key", "key", "key is missing")
	}
	counters, err := s.cfg.Engine.Status(ctx, key)
	if err != nil {
		return nil, err
	}
	return limits.Status{Key: key, Counters: wireCounters(counters, false)}, nil
}

func (s *Service) list(ctx context.Context, data []byte) (any, error) {
	req, err := decodeList(data)
	if err != nil {
		return nil, err
	}
	page, more, err := s.cfg.Engine.List(ctx, req.Prefix, parseCursor(req.After), req.Max)
	if err != nil {
		return nil, err
	}
	reply := limits.List{Counters: wireCounters(page, true)}
	if more && len(page) > 0 {
		reply.Next = cursor(page[len(page)-1].CounterID)
	}
	return reply, nil
}

// defaultListPage is how many counters a page holds unless said.
const defaultListPage = 100

func decodeList(data []byte) (limits.ListRequest, error) {
	r := newReader()
	req := limits.ListRequest{Max: defaultListPage}
	err := r.document(data, func(name []byte) error {
		switch string(name) {
		case "prefix":
			b, err := r.printable("prefix", 0, limits.MaxKeyBytes)
			req.Prefix = string(b)
			return err
		case "after":
			b, err := r.string("after")
			req.After = string(b)
			key, counter, _ := strings.Cut(req.After, cursorCut)
			_, bad := unprintable([]byte(key + strings.Replace(counter, engine.PolicyName("", ""), "", 1)))
			if err == nil && (bad || len(key) > limits.MaxKeyBytes || len(counter) > 2*limits.MaxNameBytes+1) {
				return r.bad("after", "after %s is neither a key nor the next of a page", quoteText(b))
			}
			return err
		case "max":
			n, err := r.number("max", 1, limits.MaxListPage)
			req.Max = int(n)
			return err
		default:
			return r.unknown(name, "prefix, after, max")
		}
	})
	return req, err
}

func (s *Service) reset(ctx context.Context, data []byte) (any, error) {
	req, err := decodeReset(data)
	if err != nil {
		return nil, err
	}
	n, err := s.cfg.Engine.Reset(ctx, engine.Selection{Key: req.Key, Prefix: req.Prefix}, req.DryRun)
	if err != nil {
		return nil, err
	}
	return limits.ResetReply{Reset: n}, nil
}

func decodeReset(data []byte) (limits.ResetRequest, error) {
	r := newReader()
	var req limits.ResetRequest
	var prefixed bool
	err := r.document(data, func(name []byte) (err error) {
		var b []byte
		switch string(name) {
		case "key":
			b, err = r.printable("key", 1, limits.MaxKeyBytes)
			req.Key = string(b)
		case "prefix":
			b, err = r.printable("prefix", 0, limits.MaxKeyBytes)
			req.Prefix, prefixed = string(b), true
		case "all":
			req.All, err = r.bool("all")
		case "dryRun":
			req.DryRun, err = r.bool("dryRun")
		default:
			err = r.unknown(name, "key, prefix, all, dryRun")
		}
		return err
	})
	switch {
	case err != nil:
		return req, err
	case req.Key != "" && (prefixed || req.All):
		return req, &limits.Error{Status: 400, Code: "mixed_forms", Field: "key",
			Message: "key selects one key, prefix and all select many; give one of them"}
	case req.Prefix != "" && req.All:
		return req, &limits.Error{Status: 400, Code: "mixed_forms", Field: "all",
			Message: "all selects every key and prefix only some; give one of them"}
	case req.Key == "" && !prefixed && !req.All:
		return req, badInput("key", "key", `key is missing; give key, or prefix, or "all":true for every key`)
	case req.Key == "" && req.Prefix == "" && !req.All:
		return req, badInput("prefix", "prefix", `an empty prefix selects every key; say so with "all":true`)
	}
	return req, nil
}

func wireCounters(counters []engine.Counter, keyed bool) []limits.Counter {
	out := make([]limits.Counter, len(counters))
	for i, c := range counters {
		out[i] = limits.Counter{
			Name: c.Label(), Policy: c.Policy, Algorithm: c.Algorithm, Limit: c.Limit, Window: c.Window, Burst: c.Burst,
			Used: c.Used, Remaining: c.Remaining, Reset: c.ResetAt,
		}
		if keyed {
			out[i].Key = c.Key
		}
	}
	return out
}

const (
	// cursorCut stands between key and name in the next of a page: neither can hold it.
	cursorCut = "\n"
	// afterNames sorts behind every name, because no name holds a rune that is not printable and this is the
	// last rune there is.
	afterNames = "\U0010FFFF"
)

func cursor(id engine.CounterID) string { return id.Key + cursorCut + id.Name }

// parseCursor reads the next of a page; a plain key stands for the last of its counters.
func parseCursor(after string) engine.CounterID {
	if after == "" {
		return engine.CounterID{}
	}
	key, name, ok := strings.Cut(after, cursorCut)
	if !ok {
		name = afterNames
	}
	return engine.CounterID{Key: key, Name: name}
}
