// Package jobs runs scheduled jobs on any number of replicas that share one [Store].
//
// Every replica follows all schedules. A run is identified by its job and its scheduled time, and the replica that inserts
// it into the store first runs it. Runs of a job never overlap: a run that is due while the previous one goes on is recorded
// as skipped. If a replica dies, its claim ends after the job's timeout and a grace; the next claim of any job then marks
// the run as lost. If scheduled times passed while no replica was up, the job runs once for all of them.
//
// The package does not know what a job does.
package jobs
