package main

import (
	"errors"
	"fmt"

	"github.com/seed503877ad/limits"
)

// pageSize returns --max, or the largest page for lists that show all pages without it.
func pageSize(max *int) int {
	if max == nil {
		return limits.MaxListPage
	}
	return *max
}

// listing describes a list that a verb shows page by page.
type listing[Page, Item any] struct {
	// verb is the verb's name; noun is the plural of an item, for "no items".
	verb, noun, subject string
	columns             []any
	// ask makes the request for a page, items returns a page's items and its next, and row makes the table row of an item.
	ask   func(after string, max int) any
	items func(*Page) (all []Item, next string)
	row   func(*Item) []any
	// none notes names that are not known, when there is no item at all; nil for nothing to note.
	none func()
}

// showPages shows one page, or all if max is nil. It prints page by page, so that memory is bounded for a list of any
// length.
func showPages[Page, Item any](s *session, f *clientFlags, max *int, after string, l listing[Page, Item]) error {
	nc, err := f.connect(s, l.verb)
	if err != nil {
		return err
	}
	defer nc.Close()
	t := newTable(s.out, l.columns...)
	size, begin := pageSize(max), after
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
			if begin == "" && l.none != nil {
				l.none()
			}
		case next != "":
			fmt.Fprintf(s.out, "more: --after=%s\n", shellWord(next))
		}
		return nil
	}
}

// tooLarge reports whether a page did not fit into a NATS message. The size of its items is not known before.
func tooLarge(err error) bool {
	e, ok := errors.AsType[*limits.Error](err)
	return ok && e.Code == limits.CodeTooLarge
}
