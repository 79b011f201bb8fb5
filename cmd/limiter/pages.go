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

// listing is what a verb lists, page by page.
type listing[Page, Item any] struct {
	// verb is the verb's name, and noun what there may be none of.
	verb, noun, subject string
	columns             []any
	// ask is the question for a page, items what it has and what follows it, and row an item's row.
	ask   func(after string, max int) any
	items func(*Page) (all []Item, next string)
	row   func(*Item) []any
}

// showPages shows one page, or with max nil all of them. Each is flushed, so that a list of any length is shown in bounded memory.
func showPages[Page, Item any](s *session, f *clientFlags, max *int, after string, l listing[Page, Item]) error {
	nc, err := f.connect(s, l.verb)
	if err != nil {
		return err
	}
	defer nc.Close()
	t := newTable(s.out, l.columns...)
	size := pageSize(max)
	for n := 0; ; {
		page := new(Page)
		raw, err := f.send(s, nc, l.subject, l.ask(after, size), page)
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
		items, next := l.items(page)
		if n += len(items); !f.JSON && len(items) > 0 {
			for i := range items {
				t.row(l.row(&items[i])...)
			}
			t.flush()
		}
		if after = next; next != "" && max == nil {
			continue
		}
		switch {
		case f.JSON:
		case n == 0:
			fmt.Fprintln(s.out, "no "+l.noun)
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
