package shardlease

// Created and Deleted are what the controller calls when a ring appears or disappears.
var Created, Deleted = (*Reconciler).created, (*Reconciler).deleted
