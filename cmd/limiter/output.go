package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode"
)

// stdout is standard output. It keeps its first error, for run to tell: what a verb could not print is not done.
type stdout struct {
	to io.Writer
	// end ends the verb, or a watch and a long list would go on for nobody.
	end func()
	err error
}

// Write writes text for people, without what a terminal would obey: others chose much of it.
func (o *stdout) Write(text []byte) (int, error) {
	o.write(bytes.Map(shown, text))
	return len(text), o.err
}

// line writes JSON as it came.
func (o *stdout) line(json []byte) { o.write(slices.Concat(json, []byte("\n"))) }

func (o *stdout) write(text []byte) {
	if o.err != nil {
		return
	}
	if _, o.err = o.to.Write(text); o.err != nil {
		o.end()
	}
}

// shown gives what stands for a letter of a text: itself, unless it is a control character or the like.
func shown(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// oneLine does the same to what must neither end a line nor a column.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return unicode.ReplacementChar
		}
		return shown(r)
	}, text)
}
