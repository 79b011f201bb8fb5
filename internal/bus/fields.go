package bus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// field is a member that a request may have, and the function that reads its value. The requests of
// the hot path are read by [parser], without such a table.
type field struct {
	name string
	read func(r *reader) error
}

// readFields reads data, which must be one JSON object with no other members. Empty data counts as
// {}, because many ask for a list without a body. It does not keep the fields, so that the table of
// a log entry, of which there may be one for each request, stays off the heap.
func readFields(data []byte, all ...field) error { return newReader().fields(data, all...) }

func (r *reader) fields(data []byte, all ...field) error {
	if isBlank(data) {
		return nil
	}
	return r.document(data, func(name []byte) error {
		for _, f := range all {
			if string(name) == f.name {
				return f.read(r)
			}
		}
		known := ""
		for _, f := range all {
			known += ", " + f.name
		}
		return r.unknown(name, cmp.Or(strings.TrimPrefix(known, ", "), "none"))
	})
}

// text is a string of min to max bytes whose characters are all printable.
func text(name string, to *string, min, max int) field {
	return field{name, func(r *reader) error {
		b, err := r.printable(name, min, max)
		*to = string(b)
		return err
	}}
}

// parsed is a string that parse accepts or refuses.
func parsed(name string, parse func(s string) error) field {
	return field{name, func(r *reader) error {
		b, err := r.string(name)
		if err != nil {
			return err
		}
		return parse(string(b))
	}}
}

// oneOf is one of some words.
func oneOf(name string, to *string, words ...string) field {
	return parsed(name, func(s string) error {
		if !slices.Contains(words, s) {
			return invalid(name, "unknown %s %s; want %s", name, quoteText(s), strings.Join(words, ", "))
		}
		*to = s
		return nil
	})
}

// period is a duration.
func period(name string, to *time.Duration) field {
	return parsed(name, func(s string) error {
		w, err := engine.ParseWindow(s)
		if err != nil || w.Period != 0 {
			return invalid(name, "%s %s is not a duration from 100ms to 366d; want one such as 30m, 1h or 7d", name, quoteText(s))
		}
		*to = time.Duration(w.Millis) * time.Millisecond
		return nil
	})
}

// number is a whole number.
func number[T int | int64](name string, to *T, min, max int64) field {
	return field{name, func(r *reader) error {
		n, err := r.number(name, min, max)
		*to = T(n)
		return err
	}}
}

// boolean is true or false.
func boolean(name string, to *bool) field {
	return field{name, func(r *reader) (err error) {
		*to, err = r.bool(name)
		return err
	}}
}
