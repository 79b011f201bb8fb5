package limits

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// readReply reads a decision in the form in which limiters write it: compact JSON with the members of [Reply], and texts
// without escapes. It reports false for any other form. That takes a fifth of the time of encoding/json, which has to read
// the other forms.
func readReply(answer []byte) (reply *Reply, ok bool) {
	r := replyReader{rest: string(answer)} // the texts of the reply are parts of it
	reply = r.reply()
	return reply, r.ended()
}

// readVerifyReply does the same for the answer about an API key.
func readVerifyReply(answer []byte) (reply *VerifyReply, ok bool) {
	r := replyReader{rest: string(answer)}
	reply = new(VerifyReply)
	verified := false
	r.object(func(member string) {
		switch member {
		case "valid":
			reply.Valid, verified = r.bool(), true
		case "code":
			reply.Code = r.text()
		case "key":
			r.failIf(reply.Key != nil) // encoding/json would merge the two, as below
			reply.Key = r.keyRef()
		case "user":
			reply.User = r.ownText()
		case "tier":
			reply.Tier = r.ownText()
		case "attributes":
			r.failIf(reply.Attributes != nil)
			reply.Attributes = r.texts()
		case "decision":
			r.failIf(reply.Decision != nil)
			reply.Decision = r.reply()
		default:
			r.failIf(true)
		}
	})
	r.failIf(!verified)
	return reply, r.ended()
}

// replyReader reads what is left of an answer. After a failure its results mean nothing.
type replyReader struct {
	rest   string
	failed bool
}

// ended reports whether all was read, and nothing failed.
func (r *replyReader) ended() bool { return !r.failed && r.rest == "" }

func (r *replyReader) reply() *Reply {
	reply := new(Reply)
	decided := false
	r.object(func(member string) {
		switch member {
		case "allowed":
			reply.Allowed, decided = r.bool(), true
		case "key":
			reply.Key = r.text()
		case "name":
			reply.Name = r.text()
		case "limit":
			reply.Limit = r.integer()
		case "remaining":
			reply.Remaining = r.integer()
		case "reset":
			reply.Reset = r.integer()
		case "retryAfter":
			reply.RetryAfter = r.integer()
		case "blockedBy":
			reply.BlockedBy = r.text()
		case "message":
			reply.Message = r.text()
		case "limits":
			r.failIf(reply.Limits != nil) // encoding/json would merge the two
			reply.Limits = r.limits()
		case "degraded":
			reply.Degraded = r.bool()
		case "shadow":
			reply.Shadow = r.bool()
		default:
			r.failIf(true)
		}
	})
	r.failIf(!decided)
	return reply
}

func (r *replyReader) limits() []LimitReply {
	limits := []LimitReply{}
	r.expect("[")
	for !r.failed && !r.skip("]") {
		if len(limits) > 0 {
			r.expect(",")
		}
		limits = append(limits, r.limit())
	}
	return limits
}

func (r *replyReader) limit() (l LimitReply) {
	r.object(func(member string) {
		switch member {
		case "policy":
			l.Policy = r.text()
		case "name":
			l.Name = r.text()
		case "key":
			l.Key = r.text()
		case "algorithm":
			l.Algorithm = r.text()
		case "limit":
			l.Limit = r.integer()
		case "window":
			l.Window = r.text()
		case "remaining":
			l.Remaining = r.integer()
		case "reset":
			l.Reset = r.integer()
		case "allowed":
			l.Allowed = r.bool()
		case "retryAfter":
			l.RetryAfter = r.integer()
		case "shadow":
			l.Shadow = r.bool()
		default:
			r.failIf(true)
		}
	})
	return l
}

func (r *replyReader) keyRef() *KeyRef {
	ref := new(KeyRef)
	r.object(func(member string) {
		switch member {
		case "id":
			ref.ID = r.ownText()
		case "name":
			ref.Name = r.ownText()
		default:
			r.failIf(true)
		}
	})
	return ref
}

func (r *replyReader) texts() map[string]string {
	texts := map[string]string{}
	r.object(func(member string) { texts[strings.Clone(member)] = r.ownText() })
	return texts
}

// object reads an object that has members. The function reads the value of a member.
func (r *replyReader) object(value func(member string)) {
	for r.expect("{"); !r.failed; r.expect(",") {
		member := r.text()
		r.expect(":")
		value(member)
		if r.skip("}") {
			return
		}
	}
}

func (r *replyReader) text() string {
	r.expect(`"`)
	text, rest, ended := strings.Cut(r.rest, `"`)
	for i := range len(text) {
		r.failIf(text[i] == '\\' || text[i] < ' ')
	}
	r.failIf(!ended || !utf8.ValidString(text))
	r.rest = rest
	return text
}

// ownText reads a text of a key, which callers may keep. It must not keep the whole answer, with its decision, in memory.
func (r *replyReader) ownText() string { return strings.Clone(r.text()) }

func (r *replyReader) integer() int64 {
	end := 0
	for end < len(r.rest) && (r.rest[end] >= '0' && r.rest[end] <= '9' || r.rest[end] == '-') {
		end++
	}
	digits := r.rest[:end]
	r.rest = r.rest[end:]
	n, err := strconv.ParseInt(digits, 10, 64)
	unsigned := strings.TrimPrefix(digits, "-")
	r.failIf(err != nil || unsigned[0] == '0' && len(unsigned) > 1) // JSON has no leading zeros
	return n
}

func (r *replyReader) bool() bool {
	is := r.skip("true")
	if !is {
		r.expect("false")
	}
	return is
}

// skip reports whether token comes next, and reads it.
func (r *replyReader) skip(token string) (found bool) {
	r.rest, found = strings.CutPrefix(r.rest, token)
	return found
}

// expect fails if token does not come next.
func (r *replyReader) expect(token string) { r.failIf(!r.skip(token)) }

func (r *replyReader) failIf(failed bool) { r.failed = r.failed || failed }
