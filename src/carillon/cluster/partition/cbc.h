#pragma once

struct Cbc_Model;  // as COIN-OR's headers name it

namespace carillon::cluster {

// COIN-OR's CBC, by its interface for C (Cbc_C_Interface.h of 2.10; their names without the prefix). It is
// found when it is first needed, as libCbcSolver.so.3: a server does not carry a solver, and the libraries of
// linear algebra that come with it. Its functions may throw anything.
struct Cbc {
  Cbc_Model* (*newModel)();
  void (*deleteModel)(Cbc_Model*);
  void (*addCol)(Cbc_Model*, const char* name, double lower, double upper, double cost, char is_integer,
                 int rows, int* row, double* factors);
  void (*addRow)(Cbc_Model*, const char* name, int columns, const int* column, const double* factors,
                 char sense, double right);
  void (*setMIPStartI)(Cbc_Model*, int columns, const int* column, const double* values);
  void (*setLogLevel)(Cbc_Model*, int level);
  void (*setParameter)(Cbc_Model*, const char* name, const char* value);
  void (*setMaximumSeconds)(Cbc_Model*, double seconds);
  int (*solve)(Cbc_Model*);
  int (*isProvenInfeasible)(Cbc_Model*);
  int (*isProvenOptimal)(Cbc_Model*);
  const double* (*bestSolution)(Cbc_Model*);
  double (*getObjValue)(Cbc_Model*);
  double (*getBestPossibleObjValue)(Cbc_Model*);

  // Null where it is not on this machine. Thread-safe.
  static const Cbc* find();
};

}  // namespace carillon::cluster
