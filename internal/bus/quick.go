package bus

import "github.com/seed503877ad/limits"

// quick reads in place the requests that nearly all are: a flat object, or such objects under limits, of strings
// without escapes in printable ASCII and of whole numbers. Whatever is unusual or wrong it leaves to the reader, so
// that one place alone knows the mistakes. What it takes, the reader takes as the same question.
type quickScanner struct {
	data []byte
	at   int
	// costed says that the cost was given, which cannot be seen from a cost of 1.
	hasCost bool
}

// quick reads the request into the question, which is of no use when it fails.
func (p *parser) parseQuick(data []byte) bool {
	if len(data) > limits.MaxRequestBytes {
		return false
	}
	q := quickScanner{data: data}
	return q.object(func(name []byte) bool { return p.quickTopField(&q, name) }) && q.atEnd()
}

// quickTop reads a member of the request.
func (p *parser) quickTopField(q *quickScanner, name []byte) (ok bool) {
	switch string(name) {
	case "cost":
		if !q.hasCost {
			q.hasCost = true
			p.cost, ok = q.number(1, limits.MaxAmount)
		}
	case "id":
		if p.id == "" {
			p.id, ok = q.text(limits.MaxIDBytes)
		}
	case "limits":
		if p.given == 0 {
			p.given = givenLimits
			ok = p.quickLimits(q)
		}
	default:
		ok = p.quickSpecField(q, &p.top, name)
	}
	return ok
}

// quickItems reads the items of form 2.
func (p *parser) quickLimits(q *quickScanner) bool {
	if !q.accept('[') {
		return false
	}
	for {
		if len(p.items) == limits.MaxLimits {
			return false
		}
		p.items = append(p.items, spec{})
		s := &p.items[len(p.items)-1]
		if !q.object(func(name []byte) bool { return p.quickSpecField(q, s, name) }) {
			return false
		}
		if !q.accept(',') {
			return q.accept(']')
		}
	}
}

// quickSpec reads a member of a limit.
func (p *parser) quickSpecField(q *quickScanner, s *spec, name []byte) (ok bool) {
	field := specField(name)
	if field < 0 || s.has(field) {
		return false
	}
	s.given |= 1 << field
	switch field {
	case specKey:
		s.key, ok = q.text(limits.MaxKeyBytes)
	case specName:
		s.name, ok = q.text(limits.MaxNameBytes)
	case specLimit:
		s.limit, ok = q.number(1, limits.MaxAmount)
	case specBurst:
		s.burst, ok = q.number(0, limits.MaxAmount)
	default:
		word := q.plainString()
		ok = len(word) > 0 && p.setText(s, field, word) == nil
	}
	return ok
}

// object reads an object of one member or more; member reads the value of each.
func (q *quickScanner) object(member func(name []byte) bool) bool {
	if !q.accept('{') {
		return false
	}
	for {
		name := q.plainString()
		if !q.accept(':') || !member(name) {
			return false
		}
		if !q.accept(',') {
			return q.accept('}')
		}
	}
}

// ended tells whether nothing follows.
func (q *quickScanner) atEnd() bool { return q.peek() == 0 && q.at == len(q.data) }

// peek gives the next byte that is no white space; 0 at the end, too.
func (q *quickScanner) peek() byte {
	for ; q.at < len(q.data); q.at++ {
		switch c := q.data[q.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take goes past c, if it is next.
func (q *quickScanner) accept(c byte) bool {
	if q.peek() != c {
		return false
	}
	q.at++
	return true
}

// plain reads a string of printable ASCII without escapes; empty for any other.
func (q *quickScanner) plainString() []byte {
	if !q.accept('"') {
		return nil
	}
	for i, c := range q.data[q.at:] {
		if c == '"' {
			s := q.data[q.at : q.at+i]
			q.at += i + 1
			return s
		}
		if c < ' ' || c > '~' || c == '\\' {
			break
		}
	}
	return nil
}

// text reads a string of 1 to max bytes, and keeps it.
func (q *quickScanner) text(max int) (string, bool) {
	s := q.plainString()
	if len(s) == 0 || len(s) > max {
		return "", false
	}
	return string(s), true
}

// number reads a whole number. A fraction or an exponent stays behind, where nothing takes it.
func (q *quickScanner) number(min, max int64) (n int64, ok bool) {
	q.peek()
	begin := q.at
	for q.at < len(q.data) && q.data[q.at]-'0' <= 9 && n <= max {
		n = n*10 + int64(q.data[q.at]-'0')
		q.at++
	}
	leadingZero := q.at > begin+1 && q.data[begin] == '0'
	return n, q.at > begin && !leadingZero && n >= min && n <= max
}
