package main

import (
	"errors"
	"fmt"

	"github.com/seed503877ad/limits"
)

// pageSize is --max of the lists that show all pages without it.
func pageSize(max *int) int {
	if max == nil {
		return limits.MaxListPage
	}
	return *max
}

// pages shows one page, or with max nil all of them; read shows a page and gives its JSON, its length and what follows it.
// Each is flushed, so that a list of any length is shown in bounded memory.
func (f *clientFlags) pages(s *session, t *table, noun string, max *int, after string,
	read func(after string, max int) (raw []byte, n int, next string, err error)) error {
	size := pageSize(max)
	for n := 0; ; {
		raw, got, next, err := read(after, size)
		if max == nil && size > 1 && tooLarge(err) {
			size /= 2
			continue
		}
		if f.JSON && len(raw) > 0 {
			s.out.line(raw)
		}
		if err != nil {
			return err
		}
		if n += got; !f.JSON && got > 0 {
			t.flush()
		}
		if after = next; next != "" && max == nil {
			continue
		}
		switch {
		case f.JSON:
		case n == 0:
			fmt.Fprintln(s.out, "no "+noun)
		case next != "":
			fmt.Fprintf(s.out, "more: --after %s\n", shellWord(next))
		}
		return nil
	}
}

// tooLarge tells that an answer is more than NATS takes in one message: how large an item of a page is nobody knows before.
func tooLarge(err error) bool {
	e, ok := errors.AsType[*limits.Error](err)
	return ok && e.Code == limits.CodeTooLarge
}
