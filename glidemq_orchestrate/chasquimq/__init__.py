"""The format of ChasquiMQ 1.3: envelopes of jobs, delayed and repeating jobs, keys."""
