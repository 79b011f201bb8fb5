// Package jobs runs jobs by the clock, on any number of replicas that share one [Store].
//
// Every replica ticks. A run is named by its job and the time it was scheduled for, and is done by the replica that puts
// that name into the store first. While a job runs somewhere it is not begun again: the run that would overlap is kept as
// skipped. A replica that dies keeps its claim no longer than the job's timeout and a grace; then the next run of any job
// marks it as lost. A time that passed while no replica was up is made up for, once, however many there were.
//
// The package knows what a job is called and how it ended, and nothing of what it does.
package jobs
