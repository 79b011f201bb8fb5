package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// confirm asks before an action that cannot be undone. Without a yes it returns undone as an error, such as "nothing was
// reset".
func (s *session) confirm(question, undone string) error {
	fmt.Fprintf(s.err, "%s [y/N] ", question)
	answer, err := s.readLine(undone)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New(undone)
}

// readLine reads a line; it is empty at the end of the input. A signal ends the wait with an error that says undone.
func (s *session) readLine(undone string) (string, error) {
	return await(s, undone, func() (string, error) {
		line, _ := bufio.NewReader(s.in).ReadString('\n') // the end of the input counts as an empty answer
		return line, nil
	})
}

// readSecret is readLine without echo on a terminal.
func (s *session) readSecret(undone string) (string, error) {
	file, ok := s.in.(*os.File)
	if !ok || !s.inTTY {
		return s.readLine(undone)
	}
	fd := int(file.Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("read the terminal settings: %w", err)
	}
	// After a signal ReadPassword still waits, and does not restore the terminal.
	defer func() { _ = term.Restore(fd, state) }()
	text, err := await(s, undone, func() (string, error) {
		secret, _ := term.ReadPassword(fd)
		return string(secret), nil
	})
	if err == nil {
		fmt.Fprintln(s.err) // the line break that was typed was not shown either
	}
	return text, err
}

// await waits for read or for a signal. After a signal the read still waits, until the process ends, and undone is in the
// error.
func await[T any](s *session, undone string, read func() (T, error)) (result T, err error) {
	done := make(chan func() (T, error), 1)
	go func() {
		result, err := read()
		done <- func() (T, error) { return result, err }
	}()
	select {
	case outcome := <-done:
		return outcome()
	case <-s.ctx.Done():
		if s.inTTY {
			fmt.Fprintln(s.err) // ends the line of the question
		}
		return result, errors.New("interrupted: " + undone)
	}
}
