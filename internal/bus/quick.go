package bus

import "github.com/seed503877ad/limits"

// quickScanner reads in place the shape that nearly all requests have: a flat object, or flat
// objects under limits, of strings of printable ASCII without escapes and of whole numbers. It
// gives up on everything unusual or wrong, which the strict reader then reads from the start. So
// the strict reader alone knows the mistakes. Whatever the quickScanner accepts, the strict reader
// reads alike.
type quickScanner struct {
	data []byte
	at   int
	// hasCost says that a cost was given: the value alone does not tell, as 1 is the default.
	hasCost bool
}

// parseQuick reads the request. If it returns false, what it has parsed is of no use.
func (p *parser) parseQuick(data []byte) bool {
	if len(data) > limits.MaxRequestBytes {
		return false
	}
	q := quickScanner{data: data}
	return q.object(func(name []byte) bool { return p.quickTopField(&q, name) }) && q.atEnd()
}

// quickTopField reads a top-level member of the request.
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

// quickLimits reads the array of form 2.
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

// quickSpecField reads a member of a limit.
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

// object reads an object of at least one member. member reads the value of each.
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

// atEnd reports whether nothing but white space follows.
func (q *quickScanner) atEnd() bool { return q.peek() == 0 && q.at == len(q.data) }

// peek returns the next byte that is not white space, or 0 at the end.
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

// accept goes past c if it is the next byte that is not white space.
func (q *quickScanner) accept(c byte) bool {
	if q.peek() != c {
		return false
	}
	q.at++
	return true
}

// plainString reads a string of printable ASCII without escapes. It returns nothing if the string
// is empty or any other.
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

// text reads a string of 1 to max bytes and copies it.
func (q *quickScanner) text(max int) (string, bool) {
	s := q.plainString()
	if len(s) == 0 || len(s) > max {
		return "", false
	}
	return string(s), true
}

// number reads a whole number. It stops before a fraction or an exponent, which no caller accepts
// as what comes next.
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
